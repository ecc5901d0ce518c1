// Package llama is the Llama family of language models: Llama 1 to 3.x, and what shares their structure (SmolLM2, TinyLlama,
// many fine-tunes). Parameters have the names of Hugging Face's checkpoints.
//
//	files, err := modelio.Open("SmolLM2-135M-Instruct")
//	m, err := llama.New(files.Config, llama.Options{DType: torch.BFloat16})
//	err = llama.Load(ctx, m, files.Weights, llama.LoadOptions{})
//	out := nn.Run(m, &nn.Call{Scope: step, Training: true}, llama.Input{IDs: ids, Labels: ids})
//	out.Loss.DivScalar(float64(out.Count)).Backward()
//
// New makes the structure on the meta device: no memory is taken before Load, so quantisation, adapters and sharding can
// first change what there is to load.
package llama
