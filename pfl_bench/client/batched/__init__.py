"""Local training of several clients in one batched program: a slot a client."""
