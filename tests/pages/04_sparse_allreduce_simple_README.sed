# tests/cli/sparse.bats runs it, with the file of the page
d
