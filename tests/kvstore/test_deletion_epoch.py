from kvstore.deletion_epoch import DeletionEpoch


def test_a_copy_is_kept_only_if_nothing_was_deleted_since():
    deletions, kept = DeletionEpoch(), []
    before = deletions.current()
    assert deletions.run_if_unchanged(before, lambda: kept.append(1))
    deletions.advance()
    assert not deletions.run_if_unchanged(before, lambda: kept.append(2))
    assert deletions.run_if_unchanged(deletions.current(), lambda: kept.append(3))
    assert kept == [1, 3]
