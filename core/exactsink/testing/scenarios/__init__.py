"""The kit's scenarios, each a play on a stage that raises when the promise does not hold."""
