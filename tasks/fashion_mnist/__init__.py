"""Fashion-MNIST: articles of clothing, by artificial clients."""
