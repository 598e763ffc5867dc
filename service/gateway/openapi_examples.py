REQUESTS: dict = {}
RESPONSES: dict = {}
