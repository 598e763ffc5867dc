"""Where the bucket is."""

from __future__ import annotations

from pydantic import BaseModel, Field, field_validator

from kvstitch.service.settings.fields import ADDRESS


class BucketSettings(BaseModel):
    s3_url: str = Field(
        "",
        description="cold tier, s3://bucket/prefix; empty: none",
        json_schema_extra={"option": "--s3"},
    )
    s3_endpoint: str = Field(
        "",
        description="URL of the S3 server; empty: AWS",
        repr=False,
        json_schema_extra=ADDRESS | {"option": "--s3-endpoint"},
    )
    s3_region: str = Field(
        "",
        description="empty: AWS_REGION, or us-east-1",
        json_schema_extra={"option": "--s3-region"},
    )

    @field_validator("s3_url")
    @classmethod
    def _s3_scheme(cls, value: str) -> str:
        scheme, _, bucket = value.partition("://")
        if value and (scheme != "s3" or not bucket.partition("/")[0]):
            raise ValueError("must be s3://bucket or s3://bucket/prefix")
        return value
