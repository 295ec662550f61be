"""Write the files of `exactsink init`: jobs by source and targets, and plugin packages by road."""
