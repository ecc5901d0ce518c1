// Tool is a program.
package main

func main() {}
