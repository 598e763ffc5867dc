"""The servers that are compared: each knows how it is started and asked at its best."""
