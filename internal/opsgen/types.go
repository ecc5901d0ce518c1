package main

import "fmt"

// kind is how a schema's type looks in Go. Methods are those of torch.Invocation and torch.Results.
type kind struct {
	typ     string // the Go type
	pass    string // passes a value
	passOpt string // passes a value, or the default for nil
	nonzero string // passes a value, or the default for the zero value
	read    string // reads a result
	zero    string // the schema's text of the zero value, for types that have no nil
}

var kinds = map[string]kind{
	"Tensor":       {typ: "*torch.Tensor", pass: "T", passOpt: "OptT", read: "Tensor"},
	"Tensor[]":     {typ: "[]*torch.Tensor", pass: "Ts", passOpt: "OptTs", read: "Tensors"},
	"Tensor?[]":    {typ: "[]*torch.Tensor", pass: "Ts", passOpt: "OptTs", read: "Tensors"},
	"int":          {typ: "int64", pass: "Int", passOpt: "OptInt", nonzero: "NonzeroInt", read: "Int", zero: "0"},
	"SymInt":       {typ: "int64", pass: "Int", passOpt: "OptInt", nonzero: "NonzeroInt", read: "Int", zero: "0"},
	"int[]":        {typ: "[]int64", pass: "Ints", passOpt: "OptInts", read: "Ints"},
	"SymInt[]":     {typ: "[]int64", pass: "Ints", passOpt: "OptInts", read: "Ints"},
	"float":        {typ: "float64", pass: "Float", passOpt: "OptFloat", nonzero: "NonzeroFloat", read: "Float", zero: "0."},
	"float[]":      {typ: "[]float64", pass: "Floats", passOpt: "OptFloats", read: "Floats"},
	"bool":         {typ: "bool", pass: "Bool", passOpt: "OptBool", nonzero: "NonzeroBool", read: "Bool", zero: "False"},
	"bool[]":       {typ: "[]bool", pass: "Bools", passOpt: "OptBools", read: "Bools"},
	"str":          {typ: "string", pass: "Str", passOpt: "OptStr", nonzero: "NonzeroStr", read: "Str", zero: `""`},
	"str[]":        {typ: "[]string", pass: "Strs", passOpt: "OptStrs"},
	"Scalar":       {typ: "torch.Number", pass: "Number", passOpt: "OptNumber", read: "Number"},
	"Scalar[]":     {typ: "[]torch.Number", pass: "Numbers", passOpt: "OptNumbers"},
	"ScalarType":   {typ: "torch.DType", pass: "DType", passOpt: "OptDType", read: "DType", zero: "none"},
	"QScheme":      {typ: "int64", read: "Int"},
	"SymBool":      {typ: "bool", read: "Bool"},
	"Layout":       {typ: "torch.Layout", pass: "Layout", passOpt: "OptLayout", read: "Layout", zero: "none"},
	"MemoryFormat": {typ: "torch.MemoryFormat", pass: "MemoryFormat", passOpt: "OptMemoryFormat", zero: "none"},
	"Device":       {typ: "torch.Device", pass: "Device", passOpt: "OptDevice", read: "Device", zero: "none"},
	"Generator":    {typ: "*torch.Generator", pass: "OptGenerator", passOpt: "OptGenerator"},
	"Stream":       {typ: "torch.Stream", pass: "Stream", zero: "none"},
	"Storage":      {typ: "torch.Storage", pass: "Storage", zero: "none"},
}

// hasNil tells whether the Go type has a nil of its own.
func (k kind) hasNil() bool { return k.zero == "" }

// parameter is an argument in Go: its type, and the method that passes it.
func parameter(a value) (typ, method string) {
	k := kinds[a.typ]
	switch {
	case !a.optional && !a.hasDefault:
		return k.typ, k.pass
	case k.hasNil():
		return k.typ, k.passOpt
	case !a.optional && a.def == k.zero:
		return k.typ, k.nonzero
	}
	return "*" + k.typ, k.passOpt
}

// unsupported says why an operator has no function, or gives "".
func unsupported(s *schema) string {
	for _, a := range s.args {
		if k, ok := kinds[a.typ]; !ok || k.pass == "" {
			return fmt.Sprintf("an argument of type %s", a.typ)
		}
	}
	for _, r := range s.results {
		if k, ok := kinds[r.typ]; !ok || k.read == "" {
			return fmt.Sprintf("a result of type %s", r.typ)
		}
	}
	return ""
}
