//go:build long

package peft_test

func init() { smolSteps = 20 }
