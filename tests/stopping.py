"""Trainings that are stopped after certain steps, and continued."""

from torchmcl.training import loop as loops


def stopped_and_continued(monkeypatch, stops, train):
    """Call train(resume) until it ends, stopped by a signal after each of the steps `stops` -> the number of stops."""
    step, steps = loops.Training._step, []

    def counted(self, batch, state):
        result = step(self, batch, state)
        steps.append(None)
        if len(steps) in stops:
            self.stop.number = 15
        return result

    monkeypatch.setattr(loops.Training, "_step", counted)
    times = 0
    while True:
        try:
            train(times > 0)
            return times
        except loops.Interrupted:
            times += 1
