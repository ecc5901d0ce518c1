package safetensors_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/gofsdp/gofsdp/modelio/safetensors"
)

func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "model.safetensors")

	w, err := safetensors.Create(path, []safetensors.Spec{
		{Name: "ids", DType: "U8", Shape: []int64{3, 2}},
		{Name: "scale", DType: "F32"},
	}, []safetensors.KV{{Key: "format", Value: "pt"}})
	if err != nil {
		log.Fatal(err)
	}
	defer w.Abort()
	if err := w.Write("scale", []byte{0, 0, 128, 63}); err != nil {
		log.Fatal(err)
	}
	for row := range byte(3) { // streamed row by row
		if err := w.WriteAt("ids", 2*int64(row), []byte{row, 10 * row}); err != nil {
			log.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		log.Fatal(err)
	}

	f, err := safetensors.Open(path)
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	for name, v := range f.All() {
		fmt.Println(name, v.DType, v.Shape)
	}
	ids, err := f.Tensor("ids")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(ids.Rows(1, 3))
	// Output:
	// scale F32 []
	// ids U8 [3 2]
	// [1 10 2 20]
}
