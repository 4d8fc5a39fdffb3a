"""CelebA: is a celebrity smiling, one client a celebrity."""
