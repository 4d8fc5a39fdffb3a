"""Google Speech Commands as in FedScale: which of 35 words is said, one client a speaker."""
