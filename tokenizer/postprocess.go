package tokenizer

import (
	"encoding/json"
	"fmt"
)

// parsePostProcessor reduces the post-processor to the ids before and after a sequence.
// token checks that an id exists.
func parsePostProcessor(raw json.RawMessage, token func(int32) (string, bool)) (prefix, suffix []int32, err error) {
	if isNull(raw) {
		return nil, nil, nil
	}
	type item struct {
		SpecialToken *struct{ ID string }
		Sequence     *struct{ ID string }
	}
	var c struct {
		Type          string                           `json:"type"`
		Processors    []json.RawMessage                `json:"processors"`
		Single        []item                           `json:"single"`
		SpecialTokens map[string]struct{ IDs []int32 } `json:"special_tokens"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, nil, fmt.Errorf("post_processor: %w", err)
	}
	switch c.Type {
	case "ByteLevel": // trims offsets only
		return nil, nil, nil
	case "Sequence":
		for _, r := range c.Processors {
			before, after, err := parsePostProcessor(r, token)
			if err != nil {
				return nil, nil, err
			}
			prefix, suffix = append(before, prefix...), append(suffix, after...)
		}
		return prefix, suffix, nil
	case "TemplateProcessing":
		sequences := 0
		for _, it := range c.Single {
			if it.SpecialToken == nil {
				sequences++
				continue
			}
			special, ok := c.SpecialTokens[it.SpecialToken.ID]
			if !ok {
				return nil, nil, fmt.Errorf("post_processor TemplateProcessing: %q is not in special_tokens", it.SpecialToken.ID)
			}
			for _, id := range special.IDs {
				if _, ok := token(id); !ok {
					return nil, nil, fmt.Errorf("post_processor TemplateProcessing: %q has id %d, which no token has", it.SpecialToken.ID, id)
				}
			}
			if sequences == 0 {
				prefix = append(prefix, special.IDs...)
			} else {
				suffix = append(suffix, special.IDs...)
			}
		}
		if sequences != 1 {
			return nil, nil, fmt.Errorf("post_processor TemplateProcessing: single holds the sequence %d times instead of once", sequences)
		}
		return prefix, suffix, nil
	}
	return nil, nil, fmt.Errorf("post_processor type %q is not supported (have TemplateProcessing, ByteLevel, Sequence)", c.Type)
}
