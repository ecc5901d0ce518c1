package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

const (
	prefix    = "checkpoint-"
	tmpPrefix = "tmp-"
	oldSuffix = ".old" // of a checkpoint that is being replaced where folders cannot be exchanged
)

// Folder is a folder called checkpoint-<step>.
type Folder struct {
	Dir  string
	Step int
	// Foreign tells that another program has written it. Such a checkpoint is never deleted.
	Foreign bool
	Err     error // why it cannot be resumed from; nil if it is complete
}

// List gives the checkpoints under root by ascending step, complete or not. A root that does not exist holds none.
func List(root string) ([]Folder, error) {
	names, err := subfolders(root)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: list: %w", err)
	}
	var list []Folder
	for _, name := range names {
		current := strings.TrimSuffix(name, oldSuffix)
		step, ok := parseName(current)
		if !ok || current != name && slices.Contains(names, current) {
			continue
		}
		f := Folder{Dir: filepath.Join(root, name), Step: step}
		m, _, err := readManifest(f.Dir)
		f.Foreign = m.foreign()
		if err == nil && m.Step != step && !f.Foreign {
			err = fmt.Errorf("%s is of step %d", f.Dir, m.Step)
		}
		f.Err = err
		list = append(list, f)
	}
	slices.SortFunc(list, func(a, b Folder) int { return cmp.Compare(a.Step, b.Step) })
	return list, nil
}

// Latest finds the complete checkpoint with the highest step under root. Incomplete ones are passed over; List tells what
// is wrong with them. Where there is none, the error wraps os.ErrNotExist.
func Latest(root string) (dir string, step int, err error) {
	list, err := List(root)
	if err != nil {
		return "", 0, err
	}
	var reasons faults
	for _, f := range slices.Backward(list) {
		if f.Err == nil {
			return f.Dir, f.Step, nil
		}
		reasons.add(f.Err)
	}
	if err := reasons.err(); err != nil {
		return "", 0, fmt.Errorf("checkpoint: no complete checkpoint in %s: %w:\n%w", root, os.ErrNotExist, err)
	}
	return "", 0, fmt.Errorf("checkpoint: no checkpoint in %s: %w", root, os.ErrNotExist)
}

func subfolders(root string) ([]string, error) {
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

func folderName(step int) string { return prefix + strconv.Itoa(step) }

func parseName(name string) (step int, ok bool) {
	digits, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return 0, false
	}
	step, err := strconv.Atoi(digits)
	return step, err == nil && step >= 0 && strconv.Itoa(step) == digits
}

// removeStale deletes what saves that were interrupted have left in root.
func removeStale(root string) error {
	names, err := subfolders(root)
	if err != nil {
		return err
	}
	for _, name := range names {
		rest, stale := strings.CutPrefix(name, tmpPrefix)
		if !stale {
			rest, stale = strings.CutSuffix(name, oldSuffix)
			stale = stale && slices.Contains(names, rest)
		}
		if _, ours := parseName(rest); stale && ours {
			if err := os.RemoveAll(filepath.Join(root, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// prune deletes the oldest complete checkpoints until limit are left. The one of step and those of keep stay.
func prune(root string, limit, step int, keep []int) error {
	list, err := List(root)
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(f Folder) bool { return f.Err != nil || f.Foreign })
	excess := len(list) - limit
	for _, f := range list {
		if excess <= 0 {
			break
		}
		if f.Step == step || slices.Contains(keep, f.Step) {
			continue
		}
		// Under its temporary name a half deleted checkpoint is nobody's latest one.
		doomed := filepath.Join(root, tmpPrefix+folderName(f.Step))
		if err := os.Rename(f.Dir, doomed); err != nil {
			return err
		}
		if err := os.RemoveAll(doomed); err != nil {
			return err
		}
		excess--
	}
	return nil
}

// checkFree refuses a place in which something lies that no save made.
func checkFree(final string) error {
	info, err := os.Lstat(final)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is in the way: it is no folder", final)
	}
	entries, err := os.ReadDir(final)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(filepath.Join(final, manifestName)); err != nil && len(entries) > 0 {
		return fmt.Errorf("%s is in the way: it has no %s, so another program wrote it; move it away", final, manifestName)
	}
	return nil
}

// publish gives the folder tmp the name final. A checkpoint of that name is replaced; at every moment one of the two is
// there.
func publish(tmp, final string) error {
	if _, err := os.Lstat(final); errors.Is(err, fs.ErrNotExist) {
		return os.Rename(tmp, final)
	}
	err := exchangeFolders(tmp, final)
	if errors.Is(err, errors.ErrUnsupported) {
		return publishByRenames(tmp, final)
	}
	return err
}

// publishByRenames is publish where the file system cannot exchange folders; List knows the old one's second name.
func publishByRenames(tmp, final string) error {
	old := final + oldSuffix
	if err := os.RemoveAll(old); err != nil {
		return err
	}
	if err := os.Rename(final, old); err != nil {
		return err
	}
	if err := os.Rename(tmp, final); err != nil {
		return errors.Join(err, os.Rename(old, final))
	}
	return nil
}

// writeSynced makes a new file and flushes it to disk.
func writeSynced(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// syncFolder flushes a folder's list of files. File systems that cannot do it are left alone.
func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = f.Sync()
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.EINVAL) {
		err = nil
	}
	return errors.Join(err, f.Close())
}
