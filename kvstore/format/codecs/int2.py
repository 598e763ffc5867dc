"""int2: KIVI's grouping with 4 levels, 3 bits per element (5.3 times smaller than bf16).

The authors of KIVI recommend 4 bits for models with grouped-query attention.
"""

from kvstore.format.codecs._kivi import KiviCodec

CODEC = KiviCodec("int2", bits=2)
