package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gofsdp/gofsdp/chat"
	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/modelio"
	"github.com/gofsdp/gofsdp/models/llama"
	"github.com/gofsdp/gofsdp/peft"
	"github.com/gofsdp/gofsdp/quant"
	"github.com/gofsdp/gofsdp/sft"
	"github.com/gofsdp/gofsdp/tokenizer"
	"github.com/gofsdp/gofsdp/torch"
	"golang.org/x/term"
)

// generateCmd is `gofsdp generate`.
type generateCmd struct {
	Model    string `name:"model_name_or_path" required:"" placeholder:"DIR" help:"Model folder (config.json, safetensors, tokenizer.json)."`
	Adapter  string `name:"adapter" placeholder:"DIR" help:"Adapter folder (adapter_config.json, adapter_model.safetensors)."`
	Merge    bool   `name:"merge_adapter" negatable:"" help:"Add the adapter to the weights first: faster, but 4-bit layers become 32-bit ones."`
	Prompt   string `name:"prompt" xor:"input" placeholder:"TEXT" help:"What the user says; standard input without this and messages."`
	Messages string `name:"messages" xor:"input" placeholder:"FILE" help:"JSON file with a conversation: a list of messages, or an object with the list under messages."`
	System   string `name:"system" placeholder:"TEXT" help:"System message before the prompt."`

	MaxNewTokens int     `name:"max_new_tokens" default:"256" help:"Longest answer."`
	Temperature  float64 `name:"temperature" help:"0: always the most likely token; 1: sample from the model's distribution."`
	TopP         float64 `name:"top_p" default:"1" help:"Sample from the most likely tokens that together have this probability."`
	TopK         int     `name:"top_k" help:"Sample from so many of the most likely tokens; 0: from all."`
	Seed         uint64  `name:"seed" default:"42" help:"Seed of the samples."`

	Use4Bit     bool   `name:"use_4bit_quantization" negatable:"" help:"Keep the base model's linear layers in 4 bits."`
	QuantType   string `name:"bnb_4bit_quant_type" default:"nf4" enum:"nf4,fp4" help:"4-bit data type."`
	NestedQuant bool   `name:"use_nested_quant" negatable:"" help:"Quantise the scales of the 4-bit weights as well."`
}

// Validate reports the faults of the flags together; kong calls it.
func (c *generateCmd) Validate() error {
	var faults []error
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if c.MaxNewTokens < 1 {
		bad("max_new_tokens is %d, must be at least 1", c.MaxNewTokens)
	}
	if !(c.Temperature >= 0) || math.IsInf(c.Temperature, 0) { // NaN compares as false
		bad("temperature is %v, must be a finite number and not negative", c.Temperature)
	}
	if !(c.TopP > 0 && c.TopP <= 1) {
		bad("top_p is %v, must be in (0, 1]", c.TopP)
	}
	if c.TopK < 0 {
		bad("top_k is %d, must not be negative", c.TopK)
	}
	return errors.Join(faults...)
}

// Run writes the model's answer to standard output as it comes, and its speed to standard error.
func (c *generateCmd) Run(ctx context.Context) error {
	tok, err := tokenizer.Load(c.Model)
	if err != nil {
		return err
	}
	ids, err := c.encode(tok)
	if err != nil {
		return fmt.Errorf("generate: %w", err)
	}
	prompt := make([]int64, len(ids))
	for i, id := range ids {
		prompt[i] = int64(id)
	}
	files, err := modelio.Open(c.Model)
	if err != nil {
		return err
	}
	defer files.Close()
	if err := files.Weights.Check(files.Config); err != nil {
		return err
	}
	if err := tok.CheckIDs(ids, files.Config.VocabSize); err != nil {
		return fmt.Errorf("generate: %s: %w", c.Model, err)
	}
	limit := files.Config.MaxPositionEmbeddings
	if len(prompt) >= limit {
		return fmt.Errorf("generate: the prompt has %d tokens, but the model of %s takes at most %d, answer included (max_position_embeddings)", len(prompt), c.Model, limit)
	}
	runtime.LockOSThread() // libtorch keeps buffers per thread
	if err := torch.LoadLibrary(); err != nil {
		return err
	}
	torch.SetNumThreads(sft.Threads(dist.Env{}))
	model, err := c.load(ctx, files)
	if err != nil {
		return err
	}
	options := llama.GenerateOptions{
		MaxNewTokens: min(c.MaxNewTokens, limit-len(prompt)), Temperature: c.Temperature, TopP: c.TopP, TopK: c.TopK, Seed: c.Seed,
	}
	for _, id := range model.Config.EOSTokenIDs {
		options.Stop = append(options.Stop, int64(id))
	}
	if eos, ok := tok.EOS(); ok {
		options.Stop = append(options.Stop, int64(eos))
	}
	return stream(ctx, model, tok, prompt, options, os.Stdout, os.Stderr)
}

// load makes the model, computed in fp32: CPUs without bf16 units are far slower in bf16.
func (c *generateCmd) load(ctx context.Context, files *modelio.Model) (*llama.Model, error) {
	model, err := llama.New(files.Config, llama.Options{DType: torch.Float32})
	if err != nil {
		return nil, err
	}
	if c.Use4Bit {
		if _, err := quant.Quantize(model, quant.Config{Type: c.QuantType, DoubleQuant: c.NestedQuant}, nil); err != nil {
			return nil, err
		}
	}
	var adapter *peft.Adapter
	if c.Adapter != "" {
		if adapter, err = peft.LoadAdapter(c.Adapter, model, peft.Options{}); err != nil {
			return nil, err
		}
	}
	if err := llama.Load(ctx, model, files.Weights, llama.LoadOptions{}); err != nil {
		return nil, err
	}
	if adapter != nil && c.Merge {
		err = adapter.Merge(model)
	}
	return model, err
}

// stream writes an answer.
func stream(ctx context.Context, model *llama.Model, tok *tokenizer.Tokenizer, prompt []int64, o llama.GenerateOptions, out, status io.Writer) error {
	text := tok.Stream(true)
	begin := time.Now()
	var first time.Time
	tokens := 0
	for id, err := range llama.Generate(ctx, model, prompt, o) {
		if err != nil {
			fmt.Fprintln(out)
			return err
		}
		if tokens++; tokens == 1 {
			first = time.Now()
		}
		if _, err := io.WriteString(out, text.Push(int32(id))); err != nil {
			return err
		}
	}
	fmt.Fprintln(out, text.Flush())
	if tokens > 1 {
		fmt.Fprintf(status, "[prompt: %d tokens in %.2f s; answer: %d tokens, %.1f tokens/s]\n",
			len(prompt), first.Sub(begin).Seconds(), tokens, float64(tokens-1)/time.Since(first).Seconds())
	}
	return nil
}

// encode makes the model's input: the conversation in the model's chat template, or the plain prompt where the model has
// none.
func (c *generateCmd) encode(tok *tokenizer.Tokenizer) ([]int32, error) {
	messages, err := c.conversation()
	if err != nil {
		return nil, err
	}
	var ids []int32
	if source := tok.ChatTemplate(); source != "" {
		template, err := chat.New(source, tok.SpecialTokens())
		if err != nil {
			return nil, fmt.Errorf("chat template of %s: %w", c.Model, err)
		}
		text, err := template.Render(messages, chat.RenderOptions{AddGenerationPrompt: true})
		if err != nil {
			return nil, fmt.Errorf("chat template of %s: %w", c.Model, err)
		}
		if ids, err = tok.Encode(text, tokenizer.EncodeOptions{}); err != nil {
			return nil, err
		}
	} else {
		if len(messages) != 1 {
			return nil, fmt.Errorf("the model of %s has no chat template, so it can continue a prompt only, not a conversation", c.Model)
		}
		if ids, err = tok.Encode(messages[0].Content, tokenizer.EncodeOptions{AddSpecialTokens: true}); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// conversation collects the messages from the flags, the file or standard input.
func (c *generateCmd) conversation() ([]chat.Message, error) {
	var messages []chat.Message
	if c.System != "" {
		messages = append(messages, chat.Message{Role: "system", Content: c.System})
	}
	if c.Messages != "" {
		more, err := readMessages(c.Messages)
		return append(messages, more...), err
	}
	prompt := c.Prompt
	if prompt == "" {
		if term.IsTerminal(int(os.Stdin.Fd())) {
			fmt.Fprintln(os.Stderr, "Type the prompt; end it with Ctrl-D on a line of its own.")
		}
		text, err := io.ReadAll(os.Stdin)
		if err != nil {
			return nil, fmt.Errorf("standard input: %w", err)
		}
		if !utf8.Valid(text) {
			return nil, errors.New("standard input is not valid UTF-8")
		}
		if prompt = strings.TrimSpace(string(text)); prompt == "" {
			return nil, errors.New("the prompt is empty: give --prompt, --messages or text on standard input")
		}
	}
	return append(messages, chat.Message{Role: "user", Content: prompt}), nil
}

// readMessages reads a list of messages, bare or in a row of training data.
func readMessages(path string) ([]chat.Message, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var row struct {
		Messages []chat.Message `json:"messages"`
	}
	if strings.HasPrefix(strings.TrimSpace(string(data)), "[") {
		err = json.Unmarshal(data, &row.Messages)
	} else {
		err = json.Unmarshal(data, &row)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(row.Messages) == 0 {
		return nil, fmt.Errorf("%s: no messages", path)
	}
	return row.Messages, nil
}
