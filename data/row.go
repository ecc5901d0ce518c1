package data

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Kind is the shape of a row.
type Kind uint8

const (
	// KindMessages is {"messages": [{"role": …, "content": …}, …]}.
	KindMessages Kind = iota + 1
	// KindCompletion is {"prompt": …, "completion": …}, two texts or two lists of messages.
	KindCompletion
	// KindText is {"text": …}.
	KindText
	// KindTokens is {"input_ids": […], "labels": […]}, already tokenised.
	KindTokens
)

func (k Kind) String() string {
	switch k {
	case KindMessages:
		return "messages"
	case KindCompletion:
		return "prompt/completion"
	case KindText:
		return "text"
	case KindTokens:
		return "input_ids"
	}
	return "unknown"
}

// Message is one turn of a conversation.
type Message struct {
	// Role is who speaks: system, user, assistant, tool, …
	Role string
	// Content is the text. The text parts of a content list are joined; a null content (a pure tool call) is empty.
	Content string
	// Extra holds the message's other fields (name, tool_calls, …) in their order; and content itself where it is null.
	Extra []Field
}

// Field is a named JSON value, as it was written.
type Field struct {
	Name  string
	Value json.RawMessage
}

// Row is one row of a file as it was written. Which fields are set depends on Kind.
type Row struct {
	Kind Kind
	// Messages of KindMessages; and of KindCompletion where its prompt is a list: prompt and completion, joined.
	Messages []Message
	// PromptMessages counts the leading Messages that are the prompt of KindCompletion.
	PromptMessages int
	// Text of KindText.
	Text string
	// Prompt and Completion of KindCompletion where both are texts.
	Prompt, Completion string
	// IDs and Labels of KindTokens, equally long. Without labels in the file every id is its own label.
	IDs, Labels []int32
	// Tools are the elements of the row's "tools" field as they were written, for templates that list functions; usually nil.
	Tools []json.RawMessage
}

// DefaultRoles are the roles that Open accepts unless Options.Roles says otherwise.
var DefaultRoles = []string{"system", "developer", "user", "assistant", "tool", "function", "ipython"}

// decodeRow checks a row's meaning.
func decodeRow(src []byte, v *value, o Options) (Row, *posError) {
	if v.kind != kindObject {
		return Row{}, errAt(v.off, "a row must be an object, got %s", v.kind)
	}
	d := decoder{src, o}
	text := v.field(o.TextField)
	switch ids, messages, prompt, completion := v.field("input_ids"), v.field("messages"), v.field("prompt"), v.field("completion"); {
	case ids != nil:
		return d.tokens(ids, v)
	case messages != nil:
		row := Row{Kind: KindMessages}
		var err *posError
		if row.Messages, err = d.messages("messages", messages); err != nil {
			return Row{}, err
		}
		row.Tools, err = d.tools(v)
		return row, err
	case prompt != nil && completion != nil:
		return d.completion(prompt, completion, v)
	case text != nil:
		s, err := d.text(o.TextField, text)
		return Row{Kind: KindText, Text: s}, err
	case prompt != nil:
		return Row{}, errAt(v.off, `the row has "prompt" but no "completion"`)
	case completion != nil:
		return Row{}, errAt(v.off, `the row has "completion" but no "prompt"`)
	}
	return Row{}, errAt(v.off, `the row has none of the fields "messages", "prompt" and "completion", %q, "input_ids"; it has %s`,
		o.TextField, quoteAll(v.keys))
}

type decoder struct {
	src  []byte
	opts Options
}

func (d decoder) text(name string, v *value) (string, *posError) {
	if v.kind != kindString {
		return "", errAt(v.off, "%s must be a string, got %s", name, v.kind)
	}
	return v.str, nil
}

func (d decoder) completion(prompt, completion, row *value) (Row, *posError) {
	r := Row{Kind: KindCompletion}
	var err *posError
	if prompt.kind != kindArray {
		if r.Prompt, err = d.text("prompt", prompt); err != nil {
			return Row{}, err
		}
		r.Completion, err = d.text("completion", completion)
		return r, err
	}
	if r.Messages, err = d.messages("prompt", prompt); err != nil {
		return Row{}, err
	}
	r.PromptMessages = len(r.Messages)
	answer, err := d.messages("completion", completion)
	if err != nil {
		return Row{}, err
	}
	r.Messages = append(r.Messages, answer...)
	r.Tools, err = d.tools(row)
	return r, err
}

// messages decodes a list of turns; name is the field that holds it.
func (d decoder) messages(name string, v *value) ([]Message, *posError) {
	if v.kind != kindArray {
		return nil, errAt(v.off, "%s must be an array, got %s", name, v.kind)
	}
	if len(v.items) == 0 {
		return nil, errAt(v.off, "%s is empty", name)
	}
	messages := make([]Message, len(v.items))
	for i := range v.items {
		at := name + "[" + strconv.Itoa(i) + "]"
		var err *posError
		if messages[i], err = d.message(at, &v.items[i]); err != nil {
			return nil, err
		}
	}
	return messages, nil
}

func (d decoder) message(at string, v *value) (m Message, err *posError) {
	if v.kind != kindObject {
		return m, errAt(v.off, "%s must be an object, got %s", at, v.kind)
	}
	role := v.field("role")
	if role == nil {
		return m, errAt(v.off, `%s has no "role"; it has %s`, at, quoteAll(v.keys))
	}
	if m.Role, err = d.text(at+".role", role); err != nil {
		return m, err
	}
	if !slices.Contains(d.opts.Roles, m.Role) {
		return m, errAt(role.off, "%s has the unknown role %q; known are %s", at, m.Role, strings.Join(d.opts.Roles, ", "))
	}
	content := v.field("content")
	switch {
	case content != nil && content.kind != kindNull:
		if m.Content, err = d.content(at+".content", content); err != nil {
			return m, err
		}
	case v.field("tool_calls") == nil && content == nil:
		return m, errAt(v.off, `%s (role %s) has no "content"`, at, m.Role)
	case v.field("tool_calls") == nil:
		return m, errAt(content.off, "%s.content (role %s) is null", at, m.Role)
	}
	for i, key := range v.keys {
		if item := &v.items[i]; key != "role" && (key != "content" || item.kind == kindNull) {
			m.Extra = append(m.Extra, Field{key, d.raw(item)})
		}
	}
	return m, nil
}

// content takes a text, or a list of {"type": "text", "text": …} parts.
func (d decoder) content(at string, v *value) (string, *posError) {
	if v.kind != kindArray {
		return d.text(at, v)
	}
	var b strings.Builder
	for i := range v.items {
		part, at := &v.items[i], at+"["+strconv.Itoa(i)+"]"
		text := part.field("text")
		if part.kind != kindObject || text == nil {
			return "", errAt(part.off, `%s must be {"type": "text", "text": …}: only text can be trained on`, at)
		}
		s, err := d.text(at+".text", text)
		if err != nil {
			return "", err
		}
		b.WriteString(s)
	}
	return b.String(), nil
}

func (d decoder) tools(row *value) ([]json.RawMessage, *posError) {
	v := row.field("tools")
	if v == nil || v.kind == kindNull {
		return nil, nil
	}
	if v.kind != kindArray {
		return nil, errAt(v.off, "tools must be an array, got %s", v.kind)
	}
	tools := make([]json.RawMessage, len(v.items))
	for i := range v.items {
		tools[i] = d.raw(&v.items[i])
	}
	return tools, nil
}

// raw copies a value whose shape is not ours: the source is reused for the next row.
func (d decoder) raw(v *value) json.RawMessage { return slices.Clone(d.src[v.off:v.end]) }

func (d decoder) tokens(ids, row *value) (Row, *posError) {
	r := Row{Kind: KindTokens}
	var err *posError
	if r.IDs, err = d.ints("input_ids", ids, 0); err != nil {
		return Row{}, err
	}
	if len(r.IDs) == 0 {
		return Row{}, errAt(ids.off, "input_ids is empty")
	}
	labels, mask := row.field("labels"), row.field("completion_mask")
	switch {
	case labels != nil:
		if r.Labels, err = d.ints("labels", labels, IgnoreIndex); err != nil {
			return Row{}, err
		}
		if len(r.Labels) != len(r.IDs) {
			return Row{}, errAt(labels.off, "labels has %d entries, input_ids has %d", len(r.Labels), len(r.IDs))
		}
	case mask != nil:
		on, err := d.ints("completion_mask", mask, 0)
		if err != nil {
			return Row{}, err
		}
		if len(on) != len(r.IDs) {
			return Row{}, errAt(mask.off, "completion_mask has %d entries, input_ids has %d", len(on), len(r.IDs))
		}
		r.Labels = slices.Clone(r.IDs)
		for i, x := range on {
			if x == 0 {
				r.Labels[i] = IgnoreIndex
			}
		}
	default:
		r.Labels = slices.Clone(r.IDs)
	}
	return r, nil
}

// ints decodes an array of whole numbers that are at least 0, or exactly ignore.
func (d decoder) ints(name string, v *value, ignore int64) ([]int32, *posError) {
	if v.kind != kindArray {
		return nil, errAt(v.off, "%s must be an array, got %s", name, v.kind)
	}
	out := make([]int32, len(v.items))
	for i := range v.items {
		item := &v.items[i]
		if item.kind != kindNumber {
			return nil, errAt(item.off, "%s[%d] must be a number, got %s", name, i, item.kind)
		}
		lit := string(d.src[item.off:item.end])
		x, err := strconv.ParseInt(lit, 10, 64)
		if err != nil || x > math.MaxInt32 || x < 0 && x != ignore {
			return nil, errAt(item.off, "%s[%d] is %s, which is no token id", name, i, lit)
		}
		out[i] = int32(x)
	}
	return out, nil
}

// quoteAll lists keys for an error message.
func quoteAll(keys []string) string {
	if len(keys) == 0 {
		return "no fields"
	}
	quoted := make([]string, len(keys))
	for i, k := range keys {
		quoted[i] = strconv.Quote(k)
	}
	return strings.Join(quoted, ", ")
}
