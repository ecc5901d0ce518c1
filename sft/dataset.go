package sft

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/gofsdp/gofsdp/chat"
	"github.com/gofsdp/gofsdp/data"
	"github.com/gofsdp/gofsdp/tokenizer"
)

// text turns rows into tokens.
type text struct {
	tokenizer *tokenizer.Tokenizer
	template  *chat.Template // nil where the model has none
	vocab     int            // of the model
}

func loadText(dir string) (*text, error) {
	tok, err := tokenizer.Load(dir)
	if err != nil {
		return nil, fmt.Errorf("sft: %w", err)
	}
	t := &text{tokenizer: tok}
	if source := tok.ChatTemplate(); source != "" {
		if t.template, err = chat.New(source, tok.SpecialTokens()); err != nil {
			return nil, fmt.Errorf("sft: chat template of %s: %w", dir, err)
		}
	}
	return t, nil
}

func (t *text) encoders() data.Encoders {
	return data.Encoders{
		Chat: func(messages []data.Message, tools []json.RawMessage) ([]int32, []bool, error) {
			msgs, opts, err := t.chat(messages, tools)
			if err != nil {
				return nil, nil, err
			}
			ids, learn, err := t.template.Encode(t.tokenizer, msgs, chat.EncodeOptions{RenderOptions: opts})
			if errors.Is(err, chat.ErrNoAnswer) {
				err = fmt.Errorf("%w: %w", data.ErrNoLabels, err)
			}
			return ids, learn, err
		},
		ChatPrompt: func(messages []data.Message, tools []json.RawMessage) ([]int32, error) {
			msgs, opts, err := t.chat(messages, tools)
			if err != nil {
				return nil, err
			}
			opts.AddGenerationPrompt = true
			rendered, err := t.template.Render(msgs, opts)
			if err != nil {
				return nil, err
			}
			return t.tokenizer.Encode(rendered, tokenizer.EncodeOptions{})
		},
		Text: func(s string) ([]int32, error) {
			return t.tokenizer.Encode(s, tokenizer.EncodeOptions{AddSpecialTokens: true})
		},
	}
}

// chat converts the messages of a row; both packages keep further fields in order.
func (t *text) chat(messages []data.Message, tools []json.RawMessage) ([]chat.Message, chat.RenderOptions, error) {
	var opts chat.RenderOptions
	if t.template == nil {
		return nil, opts, errors.New("the model has no chat template (tokenizer_config.json, chat_template.jinja)")
	}
	msgs := make([]chat.Message, len(messages))
	for i, m := range messages {
		msgs[i] = chat.Message{Role: m.Role, Content: m.Content}
		for _, f := range m.Extra {
			v, err := chat.ParseJSON(f.Value)
			if err != nil {
				return nil, opts, err
			}
			msgs[i].Extra = append(msgs[i].Extra, chat.Field{Name: f.Name, Value: v})
		}
	}
	opts.Tools = tools
	return msgs, opts, nil
}

// splits are the files of a dataset; eval is empty where there is none.
type splits struct{ train, eval string }

// findSplits resolves dataset_name.
func findSplits(path string) (splits, error) {
	info, err := os.Stat(path)
	if err != nil {
		return splits{}, fmt.Errorf("sft: dataset_name: %w", err)
	}
	if !info.IsDir() {
		return splits{train: path}, nil
	}
	s := splits{train: filepath.Join(path, "train.jsonl")}
	if _, err := os.Stat(s.train); err != nil {
		return splits{}, fmt.Errorf("sft: dataset folder: %w", err)
	}
	for _, name := range []string{"eval.jsonl", "test.jsonl", "validation.jsonl"} {
		file := filepath.Join(path, name)
		switch _, err := os.Stat(file); {
		case err == nil:
			s.eval = file
			return s, nil
		case !errors.Is(err, fs.ErrNotExist):
			return splits{}, fmt.Errorf("sft: dataset folder: %w", err)
		}
	}
	return s, nil
}

// examples reads and tokenises the first limit rows of a file (0: all).
func (t *text) examples(ctx context.Context, path string, limit int, c *Config) (data.Examples, data.Stats, error) {
	rows, err := data.Open(path)
	if err != nil {
		return nil, data.Stats{}, fmt.Errorf("sft: %w", err)
	}
	defer rows.Close()
	opts := data.TokeniseOptions{MaxLength: c.MaxLength, MaxRows: limit}
	if c.Packing {
		opts.MaxLength = 0 // packing cuts
	}
	if eos, ok := t.tokenizer.EOS(); ok {
		opts.EOS = []int32{eos}
	}
	list, stats, err := data.Tokenise(ctx, rows, t.encoders(), opts)
	if err != nil {
		return nil, stats, fmt.Errorf("sft: %w", err)
	}
	for i, ex := range list {
		ids := slices.Concat(ex.IDs, slices.DeleteFunc(slices.Clone(ex.Labels), func(l int32) bool { return l == data.IgnoreIndex }))
		if err := t.tokenizer.CheckIDs(ids, t.vocab); err != nil {
			return nil, stats, fmt.Errorf("sft: %s, example %d: %w", path, i, err)
		}
	}
	return list, stats, nil
}
