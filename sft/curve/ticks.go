package curve

import (
	"math"
	"strconv"

	"gonum.org/v1/plot"
)

// ticker puts about so many labelled ticks on an axis, at multiples of 1, 2 or 5 times a power of ten.
type ticker int

// Ticks implements plot.Ticker.
func (t ticker) Ticks(low, high float64) []plot.Tick {
	if !(high > low) || math.IsInf(high-low, 0) {
		return nil
	}
	step := roundStep((high - low) / float64(t))
	var ticks []plot.Tick
	for i := math.Ceil(low / step); i*step <= high; i++ {
		// Through the shortest text, so that 3*0.1 reads 0.3.
		x, err := strconv.ParseFloat(strconv.FormatFloat(i*step, 'g', 12, 64), 64)
		if err != nil {
			return nil
		}
		ticks = append(ticks, plot.Tick{Value: x, Label: label(x)})
	}
	return ticks
}

// roundStep returns the smallest round number that is not below x.
func roundStep(x float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(x)))
	for _, digit := range []float64{1, 2, 5} {
		if digit*power >= x {
			return digit * power
		}
	}
	return 10 * power
}

// label writes 0.25 and 1500 as they are, and small rates as 2e-4.
func label(x float64) string {
	if x == 0 {
		return "0"
	}
	if abs := math.Abs(x); abs >= 1e-3 && abs < 1e7 {
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	mantissa := strconv.FormatFloat(x, 'e', -1, 64)
	for i := range mantissa {
		if mantissa[i] == 'e' {
			exponent, err := strconv.Atoi(mantissa[i+1:])
			if err != nil {
				return mantissa
			}
			return mantissa[:i+1] + strconv.Itoa(exponent)
		}
	}
	return mantissa
}
