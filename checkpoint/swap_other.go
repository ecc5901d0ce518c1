//go:build !linux

package checkpoint

import "errors"

// exchangeFolders is for Linux only.
func exchangeFolders(a, b string) error { return errors.ErrUnsupported }
