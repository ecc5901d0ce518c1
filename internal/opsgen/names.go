package main

import (
	"go/token"
	"strings"
	"unicode"
)

// goName is the name of an operator's function. Words of the name and of the overload are joined in camel case:
// "max_pool2d" is MaxPool2d, "pow.Tensor_Scalar" is PowTensorScalar. An underscore at the end is InPlace ("add_.Tensor":
// AddInPlaceTensor). Underscores in front are Under (one) or Dunder (two: "__and__"), but for _foreach_ and _fused_,
// which no public operator is named like.
func goName(base, overload string) string {
	_, name, _ := strings.Cut(base, "::")
	prefix, suffix := "", ""
	switch {
	case strings.HasPrefix(name, "__") && strings.HasSuffix(name, "__"):
		prefix, name = "Dunder", strings.Trim(name, "_")
	case strings.HasPrefix(name, "_foreach_"), strings.HasPrefix(name, "_fused_"):
		name = name[1:]
	case strings.HasPrefix(name, "_"):
		prefix, name = "Under", strings.TrimLeft(name, "_")
	}
	if strings.HasSuffix(name, "_") {
		name, suffix = strings.TrimRight(name, "_"), "InPlace"
	}
	return prefix + camel(name) + suffix + camel(overload)
}

// family is the name that the in-place and _out forms of an operator share with it.
func family(base string) string { return strings.TrimRight(base, "_") }

func camel(s string) string {
	var b strings.Builder
	for _, word := range strings.Split(s, "_") {
		if word != "" {
			b.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	return b.String()
}

// parameterNames are the Go names of arguments: lower camel case, no keyword, nothing that the function's body uses.
func parameterNames(args []value) []string {
	taken := map[string]bool{"torch": true, "opts": true, "o": true, "r": true}
	names := make([]string, len(args))
	for i, a := range args {
		names[i] = unique(lowerFirst(camel(a.name)), taken)
	}
	return names
}

func unique(name string, taken map[string]bool) string {
	if token.IsKeyword(name) {
		name += "Arg"
	}
	for taken[name] {
		name += "2"
	}
	taken[name] = true
	return name
}

// lowerFirst lowers the capitals at the start of a name: "LU" is lu, "HxW" is hxW.
func lowerFirst(s string) string {
	r := []rune(s)
	for i := range r {
		if !unicode.IsUpper(r[i]) {
			break
		}
		if i > 0 && i+1 < len(r) && unicode.IsLower(r[i+1]) {
			break
		}
		r[i] = unicode.ToLower(r[i])
	}
	return string(r)
}
