"""Requests and responses of OpenAI's clients.

Types are checked here. Which fields are honoured, noted or refused is said by
`http.openai.field_table`. The extension object `kvstitch` is strict, like the rest of this service.
"""
