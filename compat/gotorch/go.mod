module github.com/wangkuiyi/gotorch

go 1.26.0

require (
	github.com/gofsdp/gofsdp v0.0.0
	github.com/stretchr/testify v1.12.1
)

require (
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.50.0 // indirect
)

// In this repository only: a program that uses the module says itself where gofsdp is, see README.md.
replace github.com/gofsdp/gofsdp => ../..
