"""The plays of William Shakespeare, one client a speaking role: predict the next letter."""
