package gotorch

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/gofsdp/gofsdp/torch"
)

// Note [Printing]
// The text is what C++'s operator<< of libtorch 1.6 writes, which the original linked: programs and their tests compare it.
// Elements are printed as float64, of complex numbers the real part. A vector is a column. A matrix is cut into blocks of
// columns that fit a line, and of a tensor with more dimensions every matrix is printed under its indices. Later libtorch
// aligns some cases differently and prints more digits of scalars.
//
// Two things look odd and are meant. The column's width follows the largest positive element and the magnitude of the
// first one, so a large negative element further on sticks out. And a C++ stream keeps its precision: once a matrix
// was printed with 4 decimals, numbers in the free form have 4 digits in the matrices after it, and so has the scale.

// Print writes a as String gives it, and a line end, to standard output.
func (a Tensor) Print() { fmt.Println(a) }

// String is a in libtorch's C++ format: its elements, then its type and shape.
func (a Tensor) String() string {
	if !a.defined() {
		return "[ Tensor (undefined) ]"
	}
	t := a.Torch()
	p := printer{form: 'g', precision: 6}
	shape := t.Shape()
	if t.Numel() > 0 {
		p.elements(hostFloats(t), shape)
	}
	sizes := make([]string, len(shape))
	for i, d := range shape {
		sizes[i] = strconv.FormatInt(d, 10)
	}
	fmt.Fprintf(&p, "[ %s{%s} ]", typeName(t), strings.Join(sizes, ","))
	return p.String()
}

func hostFloats(t *torch.Tensor) (values []float64) {
	s := torch.NewScope(nil)
	defer s.Close()
	torch.NoGrad(func() { values = torch.Slice[float64](t.In(s).ToDevice(torch.CPU).To(torch.Float64)) })
	return values
}

// typeName is libtorch's name of a device and an element type, such as CPUFloatType.
func typeName(t *torch.Tensor) string {
	device := "CPU"
	switch t.Device().Type {
	case torch.CUDAType:
		device = "CUDA"
	case torch.MetaType:
		device = "Meta"
	}
	elements := [...]string{Byte: "Byte", Char: "Char", Short: "Short", Int: "Int", Long: "Long", Half: "Half", Float: "Float",
		Double: "Double", ComplexHalf: "ComplexHalf", ComplexFloat: "ComplexFloat", ComplexDouble: "ComplexDouble", Bool: "Bool",
		QInt8: "QInt8", QUInt8: "QUInt8", QInt32: "QInt32", BFloat16: "BFloat16"}
	d := t.DType()
	name := d.String()
	if int(d) < len(elements) {
		name = elements[d]
	}
	return device + name + "Type"
}

const lineWidth = 80

// printer is a C++ stream: text, and how numbers are written.
type printer struct {
	strings.Builder
	form      byte // strconv's: 'g' free, 'f' fixed, 'e' scientific
	precision int
}

func (p *printer) elements(values []float64, shape []int64) {
	switch len(shape) {
	case 0:
		p.number(values[0], 0)
		p.WriteByte('\n')
	case 1:
		scale, width := p.choose(values)
		p.scale(scale)
		for _, v := range values {
			p.number(v/scale, width)
			p.WriteByte('\n')
		}
	case 2:
		p.matrix(values, int(shape[1]), 0)
	default:
		p.matrices(values, shape)
	}
}

// matrices prints each matrix of the last two dimensions. The first index runs fastest.
func (p *printer) matrices(values []float64, shape []int64) {
	outer, cols := shape[:len(shape)-2], int(shape[len(shape)-1])
	size := int(shape[len(shape)-2]) * cols
	index := make([]int64, len(outer))
	for n := len(values) / size; n > 0; n-- {
		at := 0
		p.WriteByte('(')
		for i, x := range index {
			at = at*int(outer[i]) + int(x)
			fmt.Fprintf(p, "%d,", x+1)
		}
		p.WriteString(".,.) = \n")
		p.matrix(values[at*size:(at+1)*size], cols, 1)
		if n > 1 {
			p.WriteByte('\n')
		}
		for i := range index {
			if index[i]++; index[i] < outer[i] {
				break
			}
			index[i] = 0
		}
	}
}

func (p *printer) matrix(values []float64, cols, indent int) {
	scale, width := p.choose(values)
	margin := strings.Repeat(" ", indent)
	perLine := (lineWidth - indent) / (width + 1)
	p.WriteString(margin)
	for first := 0; first < cols; first += perLine {
		last := min(first+perLine, cols)
		if perLine < cols {
			if first > 0 {
				p.WriteByte('\n')
			}
			fmt.Fprintf(p, "Columns %d to %d%s", first+1, last, margin)
		}
		if p.scale(scale) {
			p.WriteString(margin)
		}
		for row := 0; row < len(values); row += cols {
			if row > 0 {
				p.WriteString(margin)
				if scale != 1 {
					p.WriteByte(' ')
				}
			}
			for c := first; c < last; c++ {
				if c > first {
					p.WriteByte(' ')
				}
				p.number(values[row+c]/scale, width)
			}
			p.WriteByte('\n')
		}
	}
}

// scale prints the factor of all elements, if there is one.
func (p *printer) scale(scale float64) bool {
	if scale == 1 {
		return false
	}
	free := printer{form: 'g', precision: p.precision}
	free.number(scale, 0)
	p.WriteString(free.String() + " *\n")
	return true
}

// number writes v, to the right of a column of the given width.
func (p *printer) number(v float64, width int) {
	var s string
	switch {
	case math.IsNaN(v):
		s = "nan"
	case math.IsInf(v, 0):
		s = "inf"
	default:
		s = strconv.FormatFloat(math.Abs(v), p.form, p.precision, 64)
	}
	if math.Signbit(v) {
		s = "-" + s
	}
	fmt.Fprintf(p, "%*s", width, s)
}

// choose sets the form of numbers for elements that are printed together, and gives what they are divided by and the width
// of a column.
func (p *printer) choose(values []float64) (scale float64, width int) {
	whole := true
	smallest, largest := math.NaN(), math.NaN()
	for _, v := range values {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			continue
		}
		whole = whole && v == math.Trunc(v)
		if math.IsNaN(smallest) {
			smallest, largest = math.Abs(v), math.Abs(v)
			continue
		}
		smallest, largest = min(smallest, math.Abs(v)), max(largest, v)
	}
	low, high := digits(smallest), digits(largest)
	scale = 1
	switch {
	case whole && high > 9:
		width = 11
		p.form, p.precision = 'e', 4
	case whole:
		width = high + 1
		p.form = 'g'
	case high-low > 4:
		width = 11
		if high > 99 || high < -99 || low > 99 || low < -99 {
			width = 12
		}
		p.form, p.precision = 'e', 4
	default:
		width = high + 6
		if high == 0 {
			width = 7
		}
		if high > 5 || high < 0 {
			width, scale = 7, power(high-1)
		}
		p.form, p.precision = 'f', 4
	}
	return scale, width
}

// digits is the number of digits of v before the point, 0 or less for numbers below 1: ⌊log10 v⌋ + 1. It is 1 for 0 and
// for NaN, which stands for no finite element.
func digits(v float64) int {
	if v == 0 || math.IsNaN(v) {
		return 1
	}
	s := strconv.FormatFloat(v, 'e', -1, 64)
	exponent, _ := strconv.Atoi(s[strings.IndexByte(s, 'e')+1:])
	// The logarithm of a number just below a power of ten rounds to that of the power.
	if next := power(exponent + 1); (next-v)/next < 1e-12 {
		exponent = int(math.Floor(float64(exponent+1) + math.Log1p((v-next)/next)/math.Ln10))
	}
	return exponent + 1
}

// power is the float64 nearest to 10ⁿ, which math.Pow10 is not always.
func power(n int) float64 {
	v, _ := strconv.ParseFloat("1e"+strconv.Itoa(n), 64) // beyond the range it is +Inf or 0
	return v
}
