"""The kit's scenarios. Each raises Broken if the promise does not hold."""
