"""What the HTTP API takes and answers, as models and operations; and the document made of them."""
