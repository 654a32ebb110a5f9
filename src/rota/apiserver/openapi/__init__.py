"""The description of the HTTP API: models and operations, and the OpenAPI document made of them."""
