// Package builtin documents predeclared names.
package builtin
