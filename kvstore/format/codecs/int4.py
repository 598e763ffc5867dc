"""int4: KIVI's grouping with 16 levels, 5 bits per element (3.2 times smaller than bf16)."""

from kvstore.format.codecs._kivi import KiviCodec

CODEC = KiviCodec("int4", bits=4)
