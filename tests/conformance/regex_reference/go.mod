module regex-reference

go 1.26
