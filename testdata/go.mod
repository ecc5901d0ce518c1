module testdata

go 1.26
