"""The kit's scenarios, each raises Broken when the promise does not hold."""
