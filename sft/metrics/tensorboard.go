package metrics

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// TensorBoard writes an event file that TensorBoard shows. Its records are TFRecords
// (https://www.tensorflow.org/tutorials/load_data/tfrecord): the length as uint64, the masked CRC-32C of those 8 bytes, the
// data, and the masked CRC-32C of the data, all little-endian. The data are protocol buffers of event.proto and
// summary.proto of TensorBoard, encoded here by hand. Safe for concurrent use.
type TensorBoard struct {
	mu   sync.Mutex
	file *os.File
}

// OpenTensorBoard creates a new event file in dir, which is created too. A resumed run writes a further file; TensorBoard
// joins the files of a folder.
func OpenTensorBoard(dir string) (*TensorBoard, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("metrics: tensorboard: %w", err)
	}
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "localhost"
	}
	now := time.Now()
	// TensorBoard finds files by "tfevents" in the name and orders them by it.
	file, err := os.CreateTemp(dir, fmt.Sprintf("events.out.tfevents.%010d.%s.%d.*", now.Unix(), strings.ReplaceAll(host, "*", "_"), os.Getpid()))
	if err != nil {
		return nil, fmt.Errorf("metrics: tensorboard: %w", err)
	}
	if err := errors.Join(file.Chmod(0o644), writeRecord(file, appendString(event(now, 0), 3, "brain.Event:2"))); err != nil {
		file.Close()
		return nil, fmt.Errorf("metrics: tensorboard: %w", err)
	}
	return &TensorBoard{file: file}, nil
}

// Log writes the values of an event as scalars kind/name (train/loss), and train/epoch, as transformers names them.
func (t *TensorBoard) Log(e Event) error {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	var summary []byte
	for _, name := range slices.Sorted(maps.Keys(e.Values)) {
		summary = appendBytes(summary, 1, scalar(e.Kind+"/"+name, e.Values[name]))
	}
	summary = appendBytes(summary, 1, scalar(e.Kind+"/epoch", e.Epoch))
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := writeRecord(t.file, appendBytes(event(e.Time, e.Step), 5, summary)); err != nil {
		return fmt.Errorf("metrics: tensorboard: %w", err)
	}
	return nil
}

// Close closes the file.
func (t *TensorBoard) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.file.Close()
}

// event begins an Event: wall_time = 1 (double), step = 2 (int64).
func event(at time.Time, step int) []byte {
	b := binary.LittleEndian.AppendUint64([]byte{1<<3 | 1}, math.Float64bits(float64(at.UnixNano())/1e9))
	return binary.AppendUvarint(append(b, 2<<3), uint64(step))
}

// scalar is a Summary.Value: tag = 1, simple_value = 2 (float).
func scalar(tag string, x float64) []byte {
	b := append(appendString(nil, 1, tag), 2<<3|5)
	return binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(x)))
}

// appendBytes appends a length-delimited field; its number is below 16.
func appendBytes(b []byte, field byte, data []byte) []byte {
	return append(binary.AppendUvarint(append(b, field<<3|2), uint64(len(data))), data...)
}

func appendString(b []byte, field byte, s string) []byte { return appendBytes(b, field, []byte(s)) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// maskedCRC is the checksum of TFRecords: rotated, so that a checksum over data that holds checksums stays good.
func maskedCRC(data []byte) uint32 {
	crc := crc32.Checksum(data, castagnoli)
	return (crc>>15 | crc<<17) + 0xa282ead8
}

// writeRecord writes one TFRecord with one call.
func writeRecord(file *os.File, data []byte) error {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(data)))
	b = binary.LittleEndian.AppendUint32(b, maskedCRC(b))
	b = append(b, data...)
	b = binary.LittleEndian.AppendUint32(b, maskedCRC(data))
	_, err := file.Write(b)
	return err
}
