"""CIFAR-10: small colour images, by artificial clients."""
