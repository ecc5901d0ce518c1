package pickle

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
)

// Values that the machine makes. Python's None is nil; bool, int64, *big.Int, float64, string and []byte are Go's.
type (
	// Dict is a dict or an OrderedDict, in the order of the file, or the attributes of an object of TorchScript.
	Dict struct {
		Items  []Item
		object bool
	}
	// Item is an entry of a Dict.
	Item struct{ Key, Value any }
	// List is a list or a set.
	List struct{ Items []any }
	// Tuple is a tuple.
	Tuple struct{ Items []any }
)

// Get finds an entry by its string key.
func (d *Dict) Get(key string) (any, bool) {
	for i := len(d.Items) - 1; i >= 0; i-- { // the last one counts, as in Python
		if k, ok := d.Items[i].Key.(string); ok && k == key {
			return d.Items[i].Value, true
		}
	}
	return nil, false
}

// Global is a name of Python that a pickle refers to and that is allowed, such as "torch.float32".
type Global string

// Object is an instance of a class that Unpickle was told to know. Nothing of the class runs: what it was made from and
// the state that it was given are kept as they are.
type Object struct {
	Class Global
	Args  []any // of its constructor
	State any   // mostly a *Dict of its attributes; nil if it has none
}

// Get gives an attribute of the object.
func (o *Object) Get(name string) (any, bool) {
	d, ok := o.State.(*Dict)
	if !ok {
		return nil, false
	}
	return d.Get(name)
}

type mark struct{}

// The opcodes of pickle protocols 0 to 4 that state dicts use, named as in Python's pickletools.
const (
	opMark           = '('
	opStop           = '.'
	opPop            = '0'
	opPopMark        = '1'
	opDup            = '2'
	opFloat64        = 'G' // BINFLOAT
	opInt32          = 'J' // BININT
	opUint8          = 'K' // BININT1
	opUint16         = 'M' // BININT2
	opNone           = 'N'
	opPersID         = 'Q' // BINPERSID
	opReduce         = 'R'
	opUnicode        = 'X' // BINUNICODE
	opAppend         = 'a'
	opBuild          = 'b'
	opGlobal         = 'c'
	opDict           = 'd'
	opAppends        = 'e'
	opGet            = 'h' // BINGET
	opLongGet        = 'j' // LONG_BINGET
	opList           = 'l'
	opPut            = 'q' // BINPUT
	opLongPut        = 'r' // LONG_BINPUT
	opSetItem        = 's'
	opTuple          = 't'
	opSetItems       = 'u'
	opEmptyDict      = '}'
	opEmptyList      = ']'
	opEmptyTuple     = ')'
	opBytes          = 'B'  // BINBYTES
	opShortBytes     = 'C'  // SHORT_BINBYTES
	opString         = 'T'  // BINSTRING
	opShortString    = 'U'  // SHORT_BINSTRING
	opProto          = 0x80 // and upwards: protocol 2
	opNewObj         = 0x81
	opTuple1         = 0x85
	opTuple2         = 0x86
	opTuple3         = 0x87
	opTrue           = 0x88
	opFalse          = 0x89
	opLong1          = 0x8a
	opShortUnicode   = 0x8c // and upwards: protocol 4
	opEmptySet       = 0x8f
	opAddItems       = 0x90
	opStackGlobal    = 0x93
	opMemoize        = 0x94
	opFrame          = 0x95
	highestProtocol  = 5
	mostValues       = 1 << 24 // on the stack and in the memo: no state dict comes near
	maxGlobalName    = 256
	unknownOpMessage = "opcode %q (0x%02x) is not one that state dicts use"
)

// machine runs one pickle.
type machine struct {
	data   []byte
	pos    int
	stack  []any
	memo   map[uint32]any
	find   func(module, name string) (Global, error)
	reduce func(f Global, args []any) (any, error)
	pers   func(id any) (any, error)
}

// run gives the value of the pickle. Errors carry the offset.
func (m *machine) run() (value any, err error) {
	m.memo = map[uint32]any{}
	start := 0
	defer func() {
		if fault, ok := recover().(fault); ok {
			err = fmt.Errorf("offset %d: %w", start, fault.error)
		} else if err != nil {
			err = fmt.Errorf("offset %d: %w", start, err)
		}
	}()
	for {
		start = m.pos
		op := m.bytes(1)[0]
		if op == opStop {
			if len(m.stack) != 1 {
				return nil, fmt.Errorf("the pickle ends with %d values, not one", len(m.stack))
			}
			return m.stack[0], nil
		}
		if err := m.step(op); err != nil {
			return nil, err
		}
		if len(m.stack)+len(m.memo) > mostValues {
			return nil, fmt.Errorf("more than %d values", mostValues)
		}
	}
}

// fault leaves the machine; run returns it.
type fault struct{ error }

func failf(format string, args ...any) { panic(fault{fmt.Errorf(format, args...)}) }

func (m *machine) step(op byte) error {
	switch op {
	case opProto:
		if v := m.bytes(1)[0]; v > highestProtocol {
			return fmt.Errorf("pickle protocol %d is unknown", v)
		}
	case opFrame:
		m.bytes(8)
	case opMark:
		m.push(mark{})
	case opPop:
		m.pop()
	case opPopMark:
		m.toMark()
	case opDup:
		v := m.pop()
		m.push(v)
		m.push(v)
	case opNone:
		m.push(nil)
	case opTrue, opFalse:
		m.push(op == opTrue)
	case opUint8, opUint16, opInt32, opLong1, opFloat64:
		m.number(op)
	case opUnicode, opString:
		m.push(string(m.bytes(m.length(4))))
	case opShortUnicode, opShortString:
		m.push(string(m.bytes(m.length(1))))
	case opBytes:
		m.push(m.bytes(m.length(4)))
	case opShortBytes:
		m.push(m.bytes(m.length(1)))
	case opPut:
		m.put(uint32(m.bytes(1)[0]))
	case opLongPut:
		m.put(binary.LittleEndian.Uint32(m.bytes(4)))
	case opMemoize:
		m.put(uint32(len(m.memo)))
	case opGet:
		m.get(uint32(m.bytes(1)[0]))
	case opLongGet:
		m.get(binary.LittleEndian.Uint32(m.bytes(4)))
	case opEmptyTuple, opTuple, opTuple1, opTuple2, opTuple3, opEmptyList, opList, opEmptyDict, opDict, opEmptySet:
		m.collection(op)
	case opAppend, opAppends, opAddItems, opSetItem, opSetItems:
		m.fill(op)
	default:
		return m.object(op)
	}
	return nil
}

func (m *machine) number(op byte) {
	switch op {
	case opUint8:
		m.push(int64(m.bytes(1)[0]))
	case opUint16:
		m.push(int64(binary.LittleEndian.Uint16(m.bytes(2))))
	case opInt32:
		m.push(int64(int32(binary.LittleEndian.Uint32(m.bytes(4)))))
	case opFloat64:
		m.push(math.Float64frombits(binary.BigEndian.Uint64(m.bytes(8))))
	case opLong1: // two's complement, little-endian
		b := m.bytes(m.length(1))
		n := new(big.Int)
		for i := len(b) - 1; i >= 0; i-- {
			n.Lsh(n, 8).Or(n, big.NewInt(int64(b[i])))
		}
		if len(b) > 0 && b[len(b)-1]&0x80 != 0 {
			n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
		}
		if n.IsInt64() {
			m.push(n.Int64())
		} else {
			m.push(n)
		}
	}
}

func (m *machine) collection(op byte) {
	switch op {
	case opEmptyTuple:
		m.push(&Tuple{})
	case opTuple:
		m.push(&Tuple{m.toMark()})
	case opTuple1, opTuple2, opTuple3:
		m.push(&Tuple{m.popN(int(op) - opTuple1 + 1)})
	case opEmptyList, opEmptySet:
		m.push(&List{})
	case opList:
		m.push(&List{m.toMark()})
	case opEmptyDict:
		m.push(&Dict{})
	case opDict:
		items := m.toMark()
		d := &Dict{}
		d.add(items)
		m.push(d)
	}
}

func (m *machine) fill(op byte) {
	var items []any
	switch op {
	case opAppend:
		items = m.popN(1)
	case opSetItem:
		items = m.popN(2)
	default:
		items = m.toMark()
	}
	switch target := m.top().(type) {
	case *List:
		if op == opSetItem || op == opSetItems {
			failf("a list is filled like a dict")
		}
		target.Items = append(target.Items, items...)
	case *Dict:
		if op != opSetItem && op != opSetItems {
			failf("a dict is filled like a list")
		}
		target.add(items)
	default:
		failf("%s cannot be filled", describe(target))
	}
}

func (d *Dict) add(items []any) {
	if len(items)%2 != 0 {
		failf("a dict with %d keys and values", len(items))
	}
	for i := 0; i < len(items); i += 2 {
		d.Items = append(d.Items, Item{items[i], items[i+1]})
	}
}

// object runs the opcodes with which pickles reach beyond plain data.
func (m *machine) object(op byte) error {
	switch op {
	case opGlobal:
		module := m.line()
		return m.global(module, m.line())
	case opStackGlobal:
		pair := m.popN(2)
		module, ok1 := pair[0].(string)
		name, ok2 := pair[1].(string)
		if !ok1 || !ok2 {
			return fmt.Errorf("the name of a global is %s and %s", describe(pair[0]), describe(pair[1]))
		}
		return m.global(module, name)
	case opReduce, opNewObj:
		pair := m.popN(2)
		f, ok := pair[0].(Global)
		args, ok2 := pair[1].(*Tuple)
		if !ok || !ok2 {
			return fmt.Errorf("%s is called with %s", describe(pair[0]), describe(pair[1]))
		}
		v, err := m.reduce(f, args.Items)
		if err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
		m.push(v)
	case opBuild:
		state := m.pop()
		switch target := m.top().(type) {
		case *Object:
			target.State = state
		case *Dict: // the attributes of an OrderedDict ("_metadata") carry no weights, those of a module do
			if !target.object {
				break
			}
			d, ok := state.(*Dict)
			if !ok {
				return fmt.Errorf("the attributes of an object are %s", describe(state))
			}
			target.Items = d.Items
		default:
			return fmt.Errorf("attributes for %s", describe(target))
		}
	case opPersID:
		v, err := m.pers(m.pop())
		if err != nil {
			return err
		}
		m.push(v)
	default:
		return fmt.Errorf(unknownOpMessage, op, op)
	}
	return nil
}

func (m *machine) global(module, name string) error {
	g, err := m.find(module, name)
	if err != nil {
		return err
	}
	m.push(g)
	return nil
}

func (m *machine) bytes(n int) []byte {
	if n < 0 || n > len(m.data)-m.pos {
		failf("%d bytes wanted, %d left: the pickle is cut off", n, len(m.data)-m.pos)
	}
	b := m.data[m.pos : m.pos+n : m.pos+n]
	m.pos += n
	return b
}

// length reads a count of bytes, itself of the given width.
func (m *machine) length(width int) int {
	if width == 1 {
		return int(m.bytes(1)[0])
	}
	return int(int32(binary.LittleEndian.Uint32(m.bytes(4))))
}

func (m *machine) line() string {
	rest := m.data[m.pos:]
	for i := 0; i < len(rest) && i < maxGlobalName; i++ {
		if rest[i] == '\n' {
			m.pos += i + 1
			return string(rest[:i])
		}
	}
	failf("the name of a global has no end")
	return ""
}

func (m *machine) push(v any) { m.stack = append(m.stack, v) }

func (m *machine) top() any {
	if len(m.stack) == 0 {
		failf("the stack is empty")
	}
	return m.stack[len(m.stack)-1]
}

func (m *machine) pop() any { return m.popN(1)[0] }

// popN removes n values, none of them a mark.
func (m *machine) popN(n int) []any {
	if len(m.stack) < n {
		failf("%d values wanted, the stack has %d", n, len(m.stack))
	}
	at := len(m.stack) - n
	list := append([]any(nil), m.stack[at:]...)
	for _, v := range list {
		if _, ok := v.(mark); ok {
			failf("a mark where a value is wanted")
		}
	}
	m.stack = m.stack[:at]
	return list
}

// toMark removes the values above the last mark, and the mark.
func (m *machine) toMark() []any {
	for i := len(m.stack) - 1; i >= 0; i-- {
		if _, ok := m.stack[i].(mark); ok {
			list := append([]any(nil), m.stack[i+1:]...)
			m.stack = m.stack[:i]
			return list
		}
	}
	failf("no mark on the stack")
	return nil
}

func (m *machine) put(key uint32) { m.memo[key] = m.top() }

func (m *machine) get(key uint32) {
	v, ok := m.memo[key]
	if !ok {
		failf("memo entry %d is not set", key)
	}
	m.push(v)
}

// describe names the type of a value for messages.
func describe(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case Global:
		return string(v)
	case *Dict:
		return "a dict"
	case *List:
		return "a list"
	case *Tuple:
		return "a tuple"
	case *Tensor:
		return "a tensor"
	case *Object:
		return "an object of class " + string(v.Class)
	case string:
		return fmt.Sprintf("the string %.60q", v)
	}
	return fmt.Sprintf("a value of type %T", v)
}
