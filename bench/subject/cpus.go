package subject

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// Delays are measured with the subject on one half of the CPUs and the generator on the other: on one machine they would
// otherwise wait for each other, which engines, monitors and routers do not.

// halves divides the CPUs that this process may use; ok is false when there is only one.
func halves(all *unix.CPUSet) (subject, generator unix.CPUSet, ok bool) {
	n := all.Count()
	seen := 0
	for cpu := 0; seen < n; cpu++ {
		if !all.IsSet(cpu) {
			continue
		}
		if seen < n/2 {
			subject.Set(cpu)
		} else {
			generator.Set(cpu)
		}
		seen++
	}
	return subject, generator, n >= 2
}

// Apart restricts this process to its half of the CPUs until undo is called, and tells the half for subjects. With one CPU
// it does nothing, and subjects are not restricted either.
func Apart() (forSubjects *unix.CPUSet, undo func() error, err error) {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return nil, nil, fmt.Errorf("read the CPUs of this process: %w", err)
	}
	subject, generator, ok := halves(&all)
	if !ok {
		return nil, func() error { return nil }, nil
	}
	procs := runtime.GOMAXPROCS(generator.Count())
	undo = func() error {
		runtime.GOMAXPROCS(procs)
		return everyThread(&all)
	}
	if err := everyThread(&generator); err != nil {
		return nil, nil, fmt.Errorf("%w; undone: %w", err, undo())
	}
	return &subject, undo, nil
}

// everyThread moves all threads of this process. New ones inherit from those that make them, so it goes round until it
// finds none that it has not moved.
func everyThread(cpus *unix.CPUSet) error {
	moved := map[string]bool{}
	for more := true; more; {
		more = false
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return fmt.Errorf("list the threads of this process: %w", err)
		}
		for _, t := range threads {
			id, err := strconv.Atoi(t.Name())
			if err != nil || moved[t.Name()] {
				continue
			}
			if err := unix.SchedSetaffinity(id, cpus); err != nil && err != unix.ESRCH {
				return fmt.Errorf("restrict this process to %d CPUs: %w", cpus.Count(), err)
			}
			moved[t.Name()], more = true, true
		}
	}
	return nil
}

// startOn starts a command on the given CPUs, which it inherits from the thread that starts it; nil: on all.
func startOn(cmd *exec.Cmd, cpus *unix.CPUSet) error {
	if cpus == nil {
		return cmd.Start()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var own unix.CPUSet
	if err := unix.SchedGetaffinity(0, &own); err != nil {
		return fmt.Errorf("read the CPUs of this process: %w", err)
	}
	if err := unix.SchedSetaffinity(0, cpus); err != nil {
		return fmt.Errorf("restrict a subject to %d CPUs: %w", cpus.Count(), err)
	}
	err := cmd.Start()
	if back := unix.SchedSetaffinity(0, &own); err == nil {
		err = back
	}
	return err
}
