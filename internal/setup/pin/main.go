// Command pin writes pins.json: the wheels, with their SHA-256, that `gofsdp setup` downloads for each version of torch
// that is built and tested. Run it with `go generate ./internal/setup` after a change of the versions below.
package main

import (
	"context"
	"flag"
	"log"
	"os"

	"github.com/gofsdp/gofsdp/internal/setup"
)

// versions are the last of each line that gofsdp supports.
var versions = []string{"2.11.0", "2.12.1", setup.TorchVersion}

func main() {
	log.SetFlags(0)
	out := flag.String("o", "pins.json", "the file to write")
	flag.Parse()
	text, err := setup.Pin(context.Background(), versions...)
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(*out, text, 0o644); err != nil {
		log.Fatal(err)
	}
}
