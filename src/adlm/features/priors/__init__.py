"""Random processes that need no data, and what is learnt from them."""
