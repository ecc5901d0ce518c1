// Package peft trains small adapters instead of a whole model: LoRA (https://arxiv.org/abs/2106.09685), in the file format
// of the PEFT library.
//
//	adapter, err := peft.Apply(model, peft.Config{R: 16, LoRAAlpha: 16, TargetModules: peft.Targets("q_proj", "v_proj")}, peft.Options{})
//	…
//	err = adapter.Save(ctx, dir, peft.SaveOptions{})
//
// Apply puts an adapter around each target layer and freezes everything else. The base layer may be quantised.
package peft
