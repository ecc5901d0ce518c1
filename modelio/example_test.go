package modelio_test

import (
	"fmt"
	"log"

	"github.com/gofsdp/gofsdp/modelio"
)

// A rank reads its half of the rows of a projection, here from a GGUF file with quantised weights.
func ExampleOpen() {
	m, err := modelio.Open("../testdata/gguf/tiny_llama.gguf")
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	fmt.Println(m.Config.Architecture, m.Config.NumHiddenLayers, "layers, rope", m.Config.Rope.Type)

	w, err := m.Weights.Tensor("model.layers.1.self_attn.q_proj.weight")
	if err != nil {
		log.Fatal(err)
	}
	half := w.NumRows() / 2
	rows := make([]float32, half*w.RowLen())
	if err := w.ReadFloat32(rows, half, w.NumRows()); err != nil {
		log.Fatal(err)
	}
	fmt.Println(w.Name, w.Shape, len(rows), "elements read")
	// Output:
	// LlamaForCausalLM 2 layers, rope llama3
	// model.layers.1.self_attn.q_proj.weight [32 32] 512 elements read
}
