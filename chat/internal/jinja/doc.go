// Package jinja runs the Jinja templates that language models ship for their chat format.
//
// It implements what jinja2 offers inside transformers: an immutable sandbox with
// trim_blocks, lstrip_blocks, loop controls and {% generation %}. There is no template
// inheritance, no include and no autoescaping. Values print as in Python. Dict keys are strings.
//
//	lexer.go    text to tokens, white-space control
//	parser.go   tokens to the tree in ast.go
//	exec.go     statements, scopes, limits
//	eval.go     expressions
//	value.go    Python's truth, equality, order and printing
//	filters.go, tests.go, methods.go, json.go   the built-in vocabulary
//
// Rendering is bounded in steps, output and depth, so that a hostile template ends in an error.
package jinja
