"""What `exactsink init` writes: jobs by their source and targets, and packages of backends by their road."""
