from kvstore.deletion_epoch import DeletionEpoch


def test_a_copy_is_kept_only_if_nothing_was_deleted_since():
    purges, kept = DeletionEpoch(), []
    before = purges.now()
    assert purges.unless_since(before, lambda: kept.append(1))
    purges.begin()
    assert not purges.unless_since(before, lambda: kept.append(2))
    assert purges.unless_since(purges.now(), lambda: kept.append(3))
    assert kept == [1, 3]
