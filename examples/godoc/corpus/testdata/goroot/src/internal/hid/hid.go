// Package hid is hidden.
package hid
