package data_test

import (
	"fmt"

	"github.com/gofsdp/gofsdp/data"
)

func ExamplePack() {
	// Labels of a real example have IgnoreIndex where the prompt is.
	example := func(ids ...int32) data.Example { return data.Example{IDs: ids, Labels: ids} }
	rows, stats, err := data.Pack([]data.Example{example(1, 2, 3), example(4, 5, 6, 7, 8), example(9)}, data.PackOptions{Length: 6})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(stats.Rows, "rows")
	batch := data.Collate(rows, data.CollateOptions{})
	fmt.Println(batch.IDs)
	fmt.Println(batch.Labels)
	fmt.Println(batch.CuSeqlens)
	// Output:
	// 2 rows
	// [4 5 6 7 8 9 1 2 3]
	// [-100 5 6 7 8 -100 -100 2 3]
	// [0 5 6 9]
}

func ExampleSampler() {
	s, err := data.NewSampler(data.SamplerConfig{Rows: 10, BatchSize: 2, World: 2, Rank: 1, InOrder: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range s.StepsPerEpoch() {
		fmt.Println(s.Next(), s.Position())
	}
	// Output:
	// [2 3] {0 4}
	// [6 7] {0 8}
	// [0 1] {1 0}
}
