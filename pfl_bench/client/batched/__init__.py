"""Local training of several clients in one batched program: a lane a client."""
